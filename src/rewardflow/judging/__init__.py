"""Evidence about judges: agreement with labels and with other judges, and tests of a judge while a run trains."""
