"""Accuracy, intervals, calibration, and means over the processes of a run."""
