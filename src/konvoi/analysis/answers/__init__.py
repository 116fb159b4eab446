"""One module per question about a run: answer(run) -> Answer. Honest where it can't tell; never raises for a run that
can be read."""
