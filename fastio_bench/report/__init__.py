"""Results as tables, pages, charts and documents."""
