"""The laboratory: comparisons, reproductions and studies, and what papers publish."""
