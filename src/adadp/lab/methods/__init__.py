"""Methods of the papers, registered by entry points like those of any other package."""
