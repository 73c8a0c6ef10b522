"""A row for each table and figure of the papers: their headline figure, and how ours is had."""
