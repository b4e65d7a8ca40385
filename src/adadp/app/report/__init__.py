"""What people look at: certificates, plots, what a run will cost (outlook), and pages (html/)."""
