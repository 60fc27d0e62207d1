//! awaken-operator.
