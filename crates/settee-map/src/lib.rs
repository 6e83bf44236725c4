//! Map functions compiled to plans over JSON text.
