"""Operations on whole stores, such as recording, inspection and verification: plain functions, no command line."""
