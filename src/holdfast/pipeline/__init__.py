"""What moves events in bulk, on Spark. Only this package imports pyspark."""
