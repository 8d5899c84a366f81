"""How much load a coordinator bears: backlogs, steady rates, waits and memory, with every committed state judged."""
