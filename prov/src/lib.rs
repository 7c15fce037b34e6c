//! The libfabric provider `scif`.
