"""``clove doctor``: is this machine ready, and is this run healthy?"""
