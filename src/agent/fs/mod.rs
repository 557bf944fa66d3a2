//! The files API of one sprite (wire/rest.md §2).
