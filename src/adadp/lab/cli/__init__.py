"""Commands of the laboratory, registered by entry points."""
