"""Train a translation Transformer: ``python train.py model.heads=16``."""

import sys

if __name__ == "__main__":
    try:
        from headlab.cli.train import main  # here, so that Ctrl-C while it loads is quiet

        main()
    except KeyboardInterrupt:
        sys.exit(130)
