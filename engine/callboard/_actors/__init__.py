"""The moving side: the scheduler, the group actors and the threads they share."""
