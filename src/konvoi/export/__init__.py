"""From a run directory to a bundle, verified and measured."""
