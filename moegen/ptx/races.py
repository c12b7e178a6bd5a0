"""placeholder"""
class RaceDetector:
    def __init__(self, machine): pass
