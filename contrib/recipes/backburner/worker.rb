require_relative 'jobs'

$stdout.sync = true
Backburner.work('mail')
