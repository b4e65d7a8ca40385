"""What a budget buys: calibration, targets, plans that meet them, the noise of a search."""
