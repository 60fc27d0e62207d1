//! The routes by oneshot: who gets in, and what bad input gets.
