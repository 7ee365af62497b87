"""The page's timeline: what it shows (`scene`), how that travels (`payload`), and without script (`picture`)."""
