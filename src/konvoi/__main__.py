"""python -m konvoi is the command line too."""

from konvoi.cli import main

main()
