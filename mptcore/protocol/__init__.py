"""What a run and its supervisor say to each other, line by line. No torch."""
