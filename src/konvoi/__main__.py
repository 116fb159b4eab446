"""python -m konvoi is the command line too."""

from konvoi.cli import main

# Guarded: where there are GPUs, workers are spawned and import this module again.
if __name__ == "__main__":
    main()
