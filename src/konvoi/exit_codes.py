"""What every command ends with."""

DONE = 0
OUR_FAULT = 1
USER = 2
INTERRUPTED = 130
