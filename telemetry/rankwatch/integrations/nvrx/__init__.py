"""The interfaces of NVIDIA's nvidia-resiliency-ext (NVRx) 0.4.1, implemented by Rankwatch.

======================  ===========================================================================================
``fault_tolerance``     ``RankMonitorClient``: sections, heartbeats, calculated timeouts
``straggler``           ``Detector`` and ``Report``
``stand_in``            makes ``import nvidia_resiliency_ext`` find them, so that existing code runs unchanged
======================  ===========================================================================================
"""
