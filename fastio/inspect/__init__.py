"""What users ask of files and choices: which tool would be used and why, which tools there are, what a file holds."""
