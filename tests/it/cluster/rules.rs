//! What a member refuses, and what tools may do beside it.
