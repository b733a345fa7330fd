"""Changes of the schema from version to version; new databases are made by ``schema.py`` without them."""
