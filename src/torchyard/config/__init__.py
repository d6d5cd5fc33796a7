"""From study files and options to one `Study`. Never starts anything and knows no torch."""
