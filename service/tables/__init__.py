"""Tables of the database: the engine, the models, and who may see a row."""
