"""The durable side: tables, migrations and the SQL that moves rows, one store for each database."""
