"""Planning questions over the accountants: shapes of runs, and the noise of a search."""
