mod comparison;
mod harness;
mod hostile;
mod visibility;
