"""What people look at: plots (and, once training exists, certificates and pages)."""
