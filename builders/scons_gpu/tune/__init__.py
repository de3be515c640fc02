"""Which candidate a problem takes: what was measured on a GPU, else what the assembler says. No part of it builds anything."""
