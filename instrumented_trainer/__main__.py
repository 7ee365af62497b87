"""``torchrun ... -m instrumented_trainer``: train."""

from instrumented_trainer.train import main

if __name__ == "__main__":
    raise SystemExit(main())
