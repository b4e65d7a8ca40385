"""The application: configuration, data, training runs, search, audit, reports and the command line."""
