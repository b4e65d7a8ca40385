"""Text to objects: schedules, clip rules and methods by name with options; ``parts`` splits name and options."""
