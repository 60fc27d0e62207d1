//! Stages and receipts against a scripted operator.
