from tests.processes import trainings

__all__ = ["trainings"]
