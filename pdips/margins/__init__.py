"""Mechanisms on trees and margins of counts."""
