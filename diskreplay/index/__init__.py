"""What of a store is kept in RAM: resident columns, where runs begin and end, where patches stand."""
