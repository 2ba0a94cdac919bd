"""Two ways to run the same engines, held against each other with Polygraphy."""
