"""Train a translation Transformer: ``python train.py model.heads=16``."""

from headlab.cli.train import main

if __name__ == "__main__":
    main()
