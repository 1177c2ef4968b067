"""Compare stored runs that agree in everything but one factor and the seed.  No torch."""
