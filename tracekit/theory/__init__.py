"""What a sharded step should move, hold and reach, by the papers: formulas on plain numbers, each with its source."""
