"""What a run directory tells: read here, judged here, shown by report/, watch/ and commands/. Never imports torch."""
